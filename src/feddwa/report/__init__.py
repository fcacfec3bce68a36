"""What people look at: tables, figures and (later rooms of this folder) the report."""
