"""Keeps steps that somebody uses: leases of live processes, announcements of `datakit gc`, and pins of users."""
