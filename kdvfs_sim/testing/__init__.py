"""Property-based testing of anybody's optimizer, search, model, reader, evaluator or device.

``check`` tries the laws of a kind of plug-in, ``conformance_tests`` makes them pytest tests, ``strategies``
holds Hypothesis strategies for every noun. Needs hypothesis; pytest only where it is used.
"""

from kdvfs_sim.core.errors import UsageError

try:
    import hypothesis as _hypothesis
except ImportError:
    raise UsageError(
        "kdvfs_sim.testing and kdvfs check need hypothesis: pip install 'kdvfs-sim[testing]'"
    ) from None

from kdvfs_sim.testing.apart import Tried as Tried
from kdvfs_sim.testing.apart import check_apart as check_apart
from kdvfs_sim.testing.law import Broken as Broken
from kdvfs_sim.testing.law import Kind as Kind
from kdvfs_sim.testing.law import Law as Law
from kdvfs_sim.testing.law import laws_of as laws_of
from kdvfs_sim.testing.pytest_tests import conformance_tests as conformance_tests
from kdvfs_sim.testing.run import Verdict as Verdict
from kdvfs_sim.testing.run import check as check
from kdvfs_sim.testing.run import report as report
from kdvfs_sim.testing.run import run_law as run_law

del _hypothesis
