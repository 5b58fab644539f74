"""The HTTP faces of frontend and backend: listener, bodies, routes, faults around a request."""
