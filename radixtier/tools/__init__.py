"""What an operator runs beside a server: measuring a drive, checking a machine, looking into a store."""
