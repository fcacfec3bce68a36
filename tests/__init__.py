"""The tests. As `import feddwa` does: threads that wait shall sleep, and torch must not be loaded before it is said."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
