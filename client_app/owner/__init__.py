"""What a site's owner decides: bounds, review, the privacy ledger, what may be imported."""
