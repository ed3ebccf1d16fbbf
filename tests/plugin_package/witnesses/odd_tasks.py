"""Tasks that cannot be made, or whose scorer nobody has."""

from harness.tasks.source import TaskSource
from harness.tasks.task import Task


class Unmade(TaskSource):
    """Fails when it is made"""

    def __init__(self, name):
        raise OSError("no such place")

    def evaluation(self):
        raise AssertionError


class Wordless(TaskSource):
    """Names a scorer that is not installed"""

    def evaluation(self):
        return Task(self.name, "Wordless", lambda data_dir, fetch=True: [], scorer="nobodys")
