// Starts the UI.
document.body.append(location.pathname);
