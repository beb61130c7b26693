"""A searchable index of photographs: vectors of a retriever, kept in LanceDB files or on a Milvus server."""
