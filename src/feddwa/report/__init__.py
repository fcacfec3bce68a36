"""What people look at: progress and tables in the terminal, the report, figures for papers."""
