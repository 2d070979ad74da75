"""Class of a job that names none: what its user gave to an earlier job."""
