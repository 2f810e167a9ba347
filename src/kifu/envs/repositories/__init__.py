"""Tasks about repositories: where they come from, what repairing one needs, who judges it."""
