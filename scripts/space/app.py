"""The app as a Space; EHD_MODEL names the model to begin with, a bundled one or a Hub id."""

import os

from ehd_hf.app import launch

launch(model=os.environ.get("EHD_MODEL", "incidents"))
