"""Runs the tasks of a step in isolated processes and loses no finished work. It knows nothing about text."""
