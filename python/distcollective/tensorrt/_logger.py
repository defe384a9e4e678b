"""The log."""

import sys

from . import _enums


class ILogger:
    """The log that a program gives to builders and runtimes. Inherit, and write ``log``.

    >>> class Quiet(ILogger):
    ...     def log(self, severity, msg):
    ...         pass
    """

    Severity = _enums.Severity
    INTERNAL_ERROR = _enums.Severity.INTERNAL_ERROR
    ERROR = _enums.Severity.ERROR
    WARNING = _enums.Severity.WARNING
    INFO = _enums.Severity.INFO
    VERBOSE = _enums.Severity.VERBOSE

    def log(self, severity: _enums.Severity, msg: str) -> None:
        """Take a line of the log. Programs write their own."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method log(severity, msg)")


class Logger(ILogger):
    """A log on stderr, of lines that are as serious as ``min_severity``, or more so."""

    def __init__(self, min_severity: _enums.Severity = _enums.Severity.WARNING) -> None:
        self.min_severity = _enums.Severity(min_severity)

    def log(self, severity: _enums.Severity, msg: str) -> None:
        """Write a line to stderr, if it is serious enough."""
        if severity <= self.min_severity:
            print(f"[DCL] [{_enums.Severity(severity).name[0]}] {msg}", file=sys.stderr)


def check_logger(logger: ILogger) -> ILogger:
    """The log that a builder or a runtime gets."""
    if not isinstance(logger, ILogger):
        raise TypeError(f"logger is a {type(logger).__qualname__}, not a Logger; give distcollective.tensorrt.Logger()")
    return logger
