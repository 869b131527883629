"""Check, recover and anonymise trace files, and check the machine that writes them."""
