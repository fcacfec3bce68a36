"""The tests. Imported first, so that what the package asks of torch is set before a test loads torch."""

import feddwa  # noqa: F401
