"""Runs moto's server, and exits with its standard input.

It serves one request at a time: S3 compares an ETag and writes atomically, but in moto another thread
may write between the two steps.
"""

import os
import sys
import threading

from moto.server import DomainDispatcherApplication, main

turn, call = threading.Lock(), DomainDispatcherApplication.__call__


def one_at_a_time(self, *args):
    with turn:
        return call(self, *args)


def watch():
    sys.stdin.read()
    os._exit(0)


DomainDispatcherApplication.__call__ = one_at_a_time
threading.Thread(target=watch, daemon=True).start()
main(["-H", "127.0.0.1", "-p", "0"])
