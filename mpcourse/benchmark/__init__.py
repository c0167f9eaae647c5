"""What workers and engine cost, and what they gain, in one go: `python -m mpcourse.benchmark`."""
