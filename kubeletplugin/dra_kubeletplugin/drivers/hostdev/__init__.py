"""A driver for real devices of a Linux host, described by a YAML file (docs/hostdev.md).

==============  =====================================================================
``config``      the file: which devices, under which names, what containers get
``facts``       the files of the host, and what sysfs and udev say about one device
``interfaces``  which network interfaces a claim may have, and which a pod has
``scan``        from the file and the host to the devices that are there now
``driver``      prepares claims: what containers get
``hotplug``     looks once a second, and publishes and prepares again after a change
==============  =====================================================================
"""
