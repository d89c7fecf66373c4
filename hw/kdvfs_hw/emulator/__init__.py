"""An emulated GPU below the driver binding: the same calls, structs and codes, no hardware, no compiler."""
