"""What holds for every test."""

import signal

# A shell lets the jobs that it starts in the background ignore SIGINT, and they hand that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
