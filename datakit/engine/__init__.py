"""Runs the tasks of a step in isolated processes and loses no finished work. Knows nothing about text."""
