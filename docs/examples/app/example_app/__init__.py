"""An application that ships the choices for its kernels."""
