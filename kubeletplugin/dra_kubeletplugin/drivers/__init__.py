"""The drivers that come with the library, written against its public interface only."""
