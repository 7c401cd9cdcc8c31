"""Care for sets of images: find their errors (`plsc doctor`), cut out faces (`plsc align`), change the format
(`plsc convert`)."""
