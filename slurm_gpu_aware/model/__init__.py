"""What there is, what is asked, what is given: values that every package shares."""
