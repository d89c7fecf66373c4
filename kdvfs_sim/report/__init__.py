"""Tables for people, and timelines that open in Perfetto."""
