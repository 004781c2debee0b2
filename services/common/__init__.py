"""What more than one service needs: words, errors, configuration, transport, telemetry."""
