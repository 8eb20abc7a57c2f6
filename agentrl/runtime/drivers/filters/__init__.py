"""Groups that have ended: too old, dropped by the dynamic filter, or waiting for their step."""
