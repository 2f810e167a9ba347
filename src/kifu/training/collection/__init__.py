"""From tasks to records: which rollouts a step needs, how groups grow, double entry."""
