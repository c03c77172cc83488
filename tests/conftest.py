"""Settings for every test."""

import signal
import threading

# What a shell starts in the background ignores SIGINT, and so would the processes that tests start and interrupt.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
