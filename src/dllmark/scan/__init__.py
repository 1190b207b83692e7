"""Detection over corpora: every document of many files, on one machine or on a Ray cluster."""
