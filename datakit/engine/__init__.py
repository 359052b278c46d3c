"""Runs the tasks of a step in child processes, retries failed ones, and keeps finished results across crashes. This
package knows nothing about text.
"""
