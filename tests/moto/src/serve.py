"""Serves moto, and looks up once what it would look up for each call: its folders, and the methods of its classes."""

import functools
import sys

import moto.backends
import moto.core.responses
import moto.server

modules = tuple(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: modules
moto.core.responses.method_names_from_class = functools.cache(moto.core.responses.method_names_from_class)

# Calls are not logged.
moto.server.MotoRequestHandler.log_request = lambda *_, **__: None

sys.exit(moto.server.main())
