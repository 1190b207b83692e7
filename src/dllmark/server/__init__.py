"""Detection and generation over HTTP, and the page that shows both."""
