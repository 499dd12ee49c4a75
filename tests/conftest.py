"""Settings for all tests: hypothesis draws the same examples every time, and a slow machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "minihaares", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("minihaares")
