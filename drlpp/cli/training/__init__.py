"""What `drlpp train` plans, tells and reports."""
