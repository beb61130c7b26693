"""Studies: the tables of papers, trained and measured again on any data and at any budget."""
