"""From records to what one update trains: credit, borrowed data, learned scores, batch plans."""
