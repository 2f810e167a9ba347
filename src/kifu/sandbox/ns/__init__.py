"""The `ns` back-end: Linux namespaces, overlays, a system-call filter."""
