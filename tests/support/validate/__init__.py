"""Support for the tests of validation."""
