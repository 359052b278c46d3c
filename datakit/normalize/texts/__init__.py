"""Makes the texts of documents from columns: nested values, several columns, templates and chat messages."""
