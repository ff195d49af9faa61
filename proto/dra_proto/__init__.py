"""The gRPC contracts between kubelet and plugins: messages, stubs and servicers, all generated.

===================  ===============================  ==========================================
subpackage           service                          short name in ``supported_versions``
===================  ===============================  ==========================================
registration.v1      Registration                     (none)
dra.v1, dra.v1beta1  DRAPlugin                        ``v1.DRAPlugin``, ``v1beta1.DRAPlugin``
health.v1            DRAResourceHealth                ``v1.DRAResourceHealth``
health.v1alpha1      DRAResourceHealth                ``v1alpha1.DRAResourceHealth``
podresources.v1      PodResourcesLister               (none)
===================  ===============================  ==========================================

Each holds ``api.proto``, ``api_pb2`` and ``api_pb2_grpc``, imported as
``from dra_proto.dra.v1 import api_pb2, api_pb2_grpc``. The proto packages ``v1`` and ``v1alpha1`` have no
prefix on the wire (plugin-helper.md section 9.5): a process that loads other protos defining the same
message names in those packages fails at import, whatever the files are called; ours have paths of their own.
"""
