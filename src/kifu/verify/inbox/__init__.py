"""Programs that run inside a box, beside the code they exercise. Nothing here is imported outside of one."""
