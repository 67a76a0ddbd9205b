"""What `foliot doctor` looks at, one file for each part of the building."""
