"""How many examples property tests draw: a fixed few in the suite, many and new ones with DCPCSE_PROPERTIES=long.

DCPCSE_PROPERTIES=long pytest tests/integration/test_properties.py tests/test_senteval/test_senteval_properties.py
"""

import os

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("suite", derandomize=True, max_examples=25, database=None, **COMMON)
settings.register_profile("long", max_examples=2000, **COMMON)
settings.load_profile(os.environ.get("DCPCSE_PROPERTIES", "suite"))
