"""What torch_xla's releases have."""

from importlib.metadata import version

import pytest
from packaging.version import Version

since_2_9 = pytest.mark.skipif(
    Version(version("torch_xla")) < Version("2.9.0.dev0"),
    reason="torch_xla before 2.9 lacks this, or has it in another way",
)
