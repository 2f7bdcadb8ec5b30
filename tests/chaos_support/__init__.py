"""The parts of tests/chaos.py."""
