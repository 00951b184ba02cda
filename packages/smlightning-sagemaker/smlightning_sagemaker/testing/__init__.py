"""Contract tests, and tools for a project's own tests.

``plugin``    fixtures: every test in an empty folder, outside any cluster
``contract``  tests of any ``data.py`` and ``model.py``, which a project's tests import
``runs``      short runs of ``src/train.py``, with a record of each rank
"""
