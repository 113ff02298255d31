"""What can be exported (`zoo`), and two small trained models that work without a network (`demo`)."""
