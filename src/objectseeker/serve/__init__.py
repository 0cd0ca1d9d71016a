"""The defended detector over HTTP: the Open Inference Protocol, image files, and a web page.

limits      what a request may cost, its body, and which Host headers are allowed
queueing    admission, the queue, and one worker per device
protocol    requests and responses: tensors in JSON and binary form, detections as JSON
app         endpoints, access log, the page
server      listening, slow clients, graceful shutdown
monitoring  JSON logs, Prometheus metrics
"""
