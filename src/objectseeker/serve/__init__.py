"""The defended detector behind HTTP: the Open Inference Protocol, a plain way to send an image file, and a page.

limits      what a request may cost, and how one is refused
uploads     the body of a request, and the image in it
queueing    places, and one worker a device
protocol    the Open Inference Protocol: tensors in JSON and in binary form
answers     what is found in an image, as `detect` writes it and as tensors
app         which address does what
hosts       by which name a server may be called
connections slow clients, bodies in chunks, and what is no HTTP
server      listening, and ending in order
metrics     figures for Prometheus
logs        what happens, a line of JSON each
front       the page
"""
