"""A driver for real devices of a Linux host, described by a YAML file (docs/hostdev.md).

==============  =====================================================================
``config``      the file: which devices, under which names, what containers get
``reading``     reads the file, and checks it
``template``    texts with facts in braces, ``/dev/vfio/{iommuGroup}``
``tree``        the files of the host below which devices are looked for
``facts``       what sysfs and udev say about one device
``device``      what one look at the host finds
``scan``        from the file and the host to the devices that are there now
``looking``     once a second, thoroughly when something may have changed
``inventory``   what is published while devices come and go
``edits``       what a container gets
``driver``      prepares claims
``hotplug``     the devices, and their health, after each change
``interfaces``  which network interfaces a claim may have, and which a pod has
``replugged``   prepares claims again whose device has another node, or is gone
``listing``     the same for a person
==============  =====================================================================
"""
